"""What comes in: signals that start runs, control signals that steer them."""
