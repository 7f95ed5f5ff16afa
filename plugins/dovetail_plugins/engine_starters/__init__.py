"""Who starts engines elsewhere: the code behind choices of --data-parallel-backend."""
