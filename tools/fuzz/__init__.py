"""Damaged and hostile inputs for everything that reads what others wrote: ``make fuzz``."""
