// Reading the memory of other processes of this host through the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradred {

// Reads another process's memory. Returns 0 or the error number.
int read_process(std::int64_t pid, void* target, const void* source, std::size_t bytes) noexcept;
// Whether the kernel can read this memory of the calling process for a peer. It cannot read that of
// some devices.
bool kernel_can_read(const void* memory, std::size_t bytes) noexcept;
// Where Yama lets only a parent process read its children: allows all processes of the user to read
// this one. `gradred run` gives each rank its own parent process.
void allow_reading() noexcept;

}  // namespace gradred
