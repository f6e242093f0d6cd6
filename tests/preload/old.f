! Calls of Fortran by mpif.h, with the constants and types of Fortran.
      program old
      implicit none
      include 'mpif.h'
      integer error, rank, ranks, i, total, where(2), answer(2)
      double precision x(1000), y(1000)
      complex z
      call mpi_init(error)
      call mpi_comm_rank(MPI_COMM_WORLD, rank, error)
      call mpi_comm_size(MPI_COMM_WORLD, ranks, error)
      x = 1
      do i = 1, 10
        y = 0
        call mpi_allreduce(x, y, 1000, MPI_DOUBLE_PRECISION, MPI_SUM,
     &                     MPI_COMM_WORLD, error)
        if (error .ne. MPI_SUCCESS .or. any(y .ne. ranks)) stop 3
        total = 1
        call mpi_allreduce(MPI_IN_PLACE, total, 1, MPI_INTEGER, MPI_SUM,
     &                     MPI_COMM_WORLD, error)
        if (total .ne. ranks) stop 4
        z = (1., 2.)
        call mpi_allreduce(MPI_IN_PLACE, z, 1, MPI_COMPLEX, MPI_SUM,
     &                     MPI_COMM_WORLD, error)
        if (z .ne. ranks * (1., 2.)) stop 5
        total = rank
        call mpi_bcast(total, 1, MPI_INTEGER, ranks - 1, MPI_COMM_WORLD,
     &                 error)
        if (total .ne. ranks - 1) stop 6
        where = (/ rank, rank /)
        call mpi_allreduce(where, answer, 1, MPI_2INTEGER, MPI_MAXLOC,
     &                     MPI_COMM_WORLD, error)
        if (answer(2) .ne. ranks - 1) stop 7
      end do
      call mpi_finalize(error)
      print '(a,i0,a,i0,a)', 'rank ', rank, ' of ', ranks,
     &      ': all checks passed'
      end program
