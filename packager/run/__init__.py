"""How the steps of a plan are run: cached, in processes of their own, on this machine or others."""
