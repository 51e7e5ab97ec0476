"""What a job maximises: the advantages of responses, and the policy loss of each token.

Losses have one file for each family. `losses.LOSSES` and `advantages.ADVANTAGES` are the tables from a
manifest's choice to its function.
"""
