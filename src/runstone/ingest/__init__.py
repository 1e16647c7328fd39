"""What comes in: signals that start runs, control signals that steer them, and tasks whose time has come."""
