"""A folder for the module search path; with it, `import horovod` finds gradred."""
