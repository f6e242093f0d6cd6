"""From any array or buffer specification to memory, and buffer calls that the MPI carries out."""
