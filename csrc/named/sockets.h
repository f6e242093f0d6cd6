// TCP connections between the host groups of a communicator: one from each group to the
// coordinator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gradred {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

// Where the coordinator listens, and the secrets by which it and the other host groups recognise
// each other. The struct is broadcast as bytes.
struct Meeting {
  static constexpr std::size_t kMostAddresses = 16;
  struct Address {
    std::uint8_t family = 0, bytes[16] = {};
  };
  std::uint64_t secret[2] = {}, answer[2] = {};
  std::uint16_t port = 0, addresses = 0;
  Address address[kMostAddresses] = {};
};

// The coordinator's side: accepts connections until all host groups have connected. Never blocks.
class Accepting {
 public:
  // Throws TransportError if no socket can be opened.
  explicit Accepting(std::size_t host_groups);
  const Meeting& meeting() const { return meeting_; }
  // Returns whether all host groups have connected. Closes connections that do not know the secret.
  bool advance();
  std::size_t missing() const { return missing_; }
  // Returns the sockets, indexed by host group. The entry of group 0 is not open.
  std::vector<Socket> take() { return std::move(sockets_); }

 private:
  struct Guest {
    Socket socket;
    std::vector<std::byte> said;
    std::uint64_t since_ns;
  };
  bool read_greeting(Guest& guest);

  Meeting meeting_;
  Socket listener_;
  std::vector<Guest> guests_;
  std::vector<Socket> sockets_;
  std::size_t missing_;
};

// The side of another host group. Never blocks.
class Connecting {
 public:
  Connecting(const Meeting& meeting, std::size_t host_group)
      : meeting_(meeting), host_group_(host_group) {}
  bool advance();
  Socket take() { return std::move(socket_); }
  // For messages: the addresses that did not answer, and why.
  const std::string& tried() const { return tried_; }

 private:
  void try_next();
  void give_up(int error);

  const Meeting meeting_;
  const std::size_t host_group_;
  std::size_t next_ = 0;
  std::size_t greeted_ = 0;  // bytes of the answer that have been received
  std::byte answer_[sizeof Meeting::answer] = {};
  bool connected_ = false, done_ = false;
  Socket socket_;
  std::uint64_t since_ns_ = 0;
  std::string tried_;
};

}  // namespace gradred
