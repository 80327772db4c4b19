"""Order, payment and inventory as a choreography: three services that know each other only by their events."""
