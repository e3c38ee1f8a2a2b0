"""What must hold in every simulated run: an invariant for each class, with its exceptions beside it."""
