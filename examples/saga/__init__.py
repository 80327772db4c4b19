"""Order, payment and inventory as orchestration: one saga directs the other services, and undoes what fails."""
