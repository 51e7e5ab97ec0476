"""`make test`: runs all tiers of the tests, tells what each gave, and writes that down.

`stages` says what runs beside what, `results` reads what a tier's tests reported and puts it into words,
`run` starts the tiers and shows their output, one tier after the other.
"""
