// What this process waits for, where other processes of the user can read it (`gradred ps`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradred {

// Lies in memory that Python has made; src/gradred/_status.py reads it with the same layout.
struct StatusPage {
  std::uint64_t sequence;  // odd while the rest is being written
  std::uint64_t since_ns;  // of Clock; 0: this process waits for nothing
  char text[4080];
};
static_assert(sizeof(StatusPage) == 4096);

void use_status_page(StatusPage* page);  // null: none
void post_status(std::uint64_t since_ns, std::string_view text);
void clear_status();

}  // namespace gradred
