"""What a person sees while cells run: a drawn area in a terminal, lines anywhere else."""
