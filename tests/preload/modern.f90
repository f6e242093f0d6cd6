! Calls of Fortran by the module mpi_f08.
program modern
  use mpi_f08
  implicit none
  integer :: rank, ranks, i, total
  real(8), asynchronous :: x(1000), y(1000)
  type(MPI_Request) :: request
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  x = 1
  do i = 1, 10
    y = 0
    call MPI_Allreduce(x, y, 1000, MPI_REAL8, MPI_SUM, MPI_COMM_WORLD)
    if (any(y /= ranks)) stop 3
    total = 1
    call MPI_Allreduce(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
    if (total /= ranks) stop 4
    y = 0
    call MPI_Iallreduce(x, y, 1000, MPI_REAL8, MPI_SUM, MPI_COMM_WORLD, request)
    call MPI_Wait(request, MPI_STATUS_IGNORE)
    if (any(y /= ranks)) stop 5
  end do
  call MPI_Finalize()
  print '(a,i0,a,i0,a)', 'rank ', rank, ' of ', ranks, ': all checks passed'
end program
