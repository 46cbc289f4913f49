"""How the stages run."""
