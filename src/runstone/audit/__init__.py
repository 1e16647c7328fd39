"""The audit: prove a store, make its rows again, carry histories to other stores, draw their causes."""
