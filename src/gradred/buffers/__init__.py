"""Find the memory of arrays and buffer specifications; prepare calls for the MPI."""
