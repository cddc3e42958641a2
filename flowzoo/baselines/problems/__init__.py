"""Which problems a run trains on, and in which order: filters, curricula, measured difficulty."""
