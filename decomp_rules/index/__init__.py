"""Reading and writing by index, sorting, unique elements, what data selects."""
