"""The pure core: events, the fold, decisions. No I/O, no clock, no randomness; time and ids are passed in."""
