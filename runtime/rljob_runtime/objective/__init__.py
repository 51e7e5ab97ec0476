"""What a job maximises: the policy loss of each token.

One file for each family; `losses.LOSSES` is the table from a manifest's choice to its function.
"""
