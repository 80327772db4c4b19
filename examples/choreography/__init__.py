"""A choreography of order, payment and inventory: three services that know each other only by their events."""
