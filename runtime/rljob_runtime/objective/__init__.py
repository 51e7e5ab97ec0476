"""What a job maximises: how rewards become advantages, and the policy loss of each token.

One file for each family; `losses.LOSSES` is the table from a manifest's choice to its function.
"""
