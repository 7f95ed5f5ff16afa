"""Accounts: what each owner used, by model and day."""
