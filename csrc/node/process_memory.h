// Memory of other processes of this host, read by the kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gradred {

// Reads another process's memory. 0, or the error number.
int read_process(std::int64_t pid, void* target, const void* source, std::size_t bytes) noexcept;
// Whether the kernel can read this memory of ours for a peer; false for that of some devices.
bool kernel_can_read(const void* memory, std::size_t bytes) noexcept;
// Where only a parent may look at its children (Yama): lets the user's other processes do so. Under
// `gradred run` each rank has a parent of its own.
void allow_reading() noexcept;

}  // namespace gradred
