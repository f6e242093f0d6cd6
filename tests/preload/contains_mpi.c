/* Stands for a program that was linked with an MPI as an archive. */
int PMPI_Allreduce(void);
int MPI_Allreduce(void);

int PMPI_Allreduce(void) { return 0; }
int MPI_Allreduce(void) { return PMPI_Allreduce(); }
int main(void) { return MPI_Allreduce(); }
