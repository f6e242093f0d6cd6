#include "named/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/clock.h"
#include "base/errors.h"
#include "base/random.h"
#include "named/submission.h"

namespace gradred {
namespace {

constexpr std::uint64_t kAddressNs = 2'000'000'000;  // time for one address to answer
// Time for a new connection to send its greeting.
constexpr std::uint64_t kGreetingNs = 5'000'000'000;
constexpr char kWord[8] = {'g', 'r', 'a', 'd', 'r', 'e', 'd', '1'};

// The first message of a host group. submission_bytes differs if the two sides are of different
// builds.
struct Greeting {
  char word[8] = {};
  std::uint64_t secret[2] = {};
  std::uint32_t host_group = 0, submission_bytes = sizeof(Submission);
};

std::string error_text(int error) { return std::generic_category().message(error); }

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress address_of(const Meeting::Address& address, std::uint16_t port) {
  SocketAddress made;
  if (address.family == AF_INET) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(made.storage);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, address.bytes, sizeof v4.sin_addr);
    made.length = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(made.storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&v6.sin6_addr, address.bytes, sizeof v6.sin6_addr);
    made.length = sizeof v6;
  }
  return made;
}

std::string text_of(const Meeting::Address& address, std::uint16_t port) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(address.family, address.bytes, text, sizeof text);
  return std::string(text) + " port " + std::to_string(port);
}

// Lists the addresses of this host's interfaces that are up. Those that other hosts may reach come
// before loopback addresses, which serve host groups on one host.
void find_addresses(Meeting& meeting, bool v6) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  for (const bool loopback : {false, true}) {
    for (const int family : {AF_INET, AF_INET6}) {
      if (family == AF_INET6 && !v6) continue;
      for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
        if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
        if ((one->ifa_flags & IFF_UP) == 0) continue;
        if (((one->ifa_flags & IFF_LOOPBACK) != 0) != loopback) continue;
        if (meeting.addresses == Meeting::kMostAddresses) break;
        Meeting::Address& next = meeting.address[meeting.addresses];
        next.family = static_cast<std::uint8_t>(family);
        if (family == AF_INET) {
          const auto* const v4 = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
          std::memcpy(next.bytes, &v4->sin_addr, sizeof v4->sin_addr);
        } else {
          const auto* const six = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
          if (IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) continue;
          std::memcpy(next.bytes, &six->sin6_addr, sizeof six->sin6_addr);
        }
        ++meeting.addresses;
      }
    }
  }
  freeifaddrs(all);
}

Socket listen_by(int family) {
  Socket made(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.is_open()) return {};
  const int off = 0;
  if (family == AF_INET6) {
    setsockopt(made.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  const SocketAddress any = address_of({.family = static_cast<std::uint8_t>(family)}, 0);
  if (bind(made.fd(), any.get(), any.length) != 0 || listen(made.fd(), 1024) != 0) return {};
  return made;
}

std::uint16_t port_of(int fd) {
  SocketAddress own;
  own.length = sizeof own.storage;
  getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.length);
  return ntohs(own.storage.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in&>(own.storage).sin_port
                   : reinterpret_cast<const sockaddr_in6&>(own.storage).sin6_port);
}

// Small messages are sent at once, and keepalive probes detect a host that has gone.
void prepare(int fd) {
  const int on = 1, idle = 10, every = 5, probes = 4;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

void Socket::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

// ---- the coordinator's side ---------------------------------------------------------------------

Accepting::Accepting(std::size_t host_groups) : sockets_(host_groups), missing_(host_groups - 1) {
  listener_ = listen_by(AF_INET6);
  const bool v6 = listener_.is_open();
  if (!v6) listener_ = listen_by(AF_INET);
  if (!listener_.is_open()) {
    throw TransportError("named operations: no socket to listen on: " + error_text(errno));
  }
  for (auto* const secret : {meeting_.secret, meeting_.answer}) {
    secret[0] = random_number();
    secret[1] = random_number();
  }
  meeting_.port = port_of(listener_.fd());
  find_addresses(meeting_, v6);
}

bool Accepting::advance() {
  while (true) {
    Socket guest(accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!guest.is_open()) break;
    guests_.push_back({std::move(guest), {}, now_ns()});
  }
  std::erase_if(guests_, [this](Guest& guest) {
    return read_greeting(guest) || now_ns() - guest.since_ns > kGreetingNs;
  });
  return missing_ == 0;
}

// Returns whether the connection needs no more reading: accepted, or to be closed.
bool Accepting::read_greeting(Guest& guest) {
  Greeting greeting;
  const std::size_t have = guest.said.size();
  guest.said.resize(sizeof greeting);
  const ssize_t got =
      ::recv(guest.socket.fd(), guest.said.data() + have, sizeof greeting - have, 0);
  guest.said.resize(have + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  if (got == 0 || (got < 0 && !would_block())) return true;
  if (guest.said.size() < sizeof greeting) return false;
  std::memcpy(&greeting, guest.said.data(), sizeof greeting);
  const bool known = std::equal(kWord, std::end(kWord), greeting.word) &&
                     std::ranges::equal(greeting.secret, meeting_.secret) &&
                     greeting.submission_bytes == sizeof(Submission) && greeting.host_group != 0 &&
                     greeting.host_group < sockets_.size() &&
                     !sockets_[greeting.host_group].is_open();
  if (!known) return true;
  prepare(guest.socket.fd());
  const ssize_t sent =
      ::send(guest.socket.fd(), meeting_.answer, sizeof meeting_.answer, MSG_NOSIGNAL);
  if (sent != sizeof meeting_.answer) return true;
  sockets_[greeting.host_group] = std::move(guest.socket);
  --missing_;
  return true;
}

// ---- the side of another host group -------------------------------------------------------------

void Connecting::try_next() {
  if (meeting_.addresses == 0) {
    throw TransportError("named operations: the host of rank 0 has no network address");
  }
  if (next_ == meeting_.addresses) tried_.clear();  // start again with the first address
  next_ %= meeting_.addresses;
  const Meeting::Address& address = meeting_.address[next_];
  since_ns_ = now_ns();
  connected_ = false;
  greeted_ = 0;
  socket_ = Socket(socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.is_open()) return give_up(errno);
  const SocketAddress to = address_of(address, meeting_.port);
  if (connect(socket_.fd(), to.get(), to.length) != 0 && errno != EINPROGRESS) give_up(errno);
}

void Connecting::give_up(int error) {
  tried_ += (tried_.empty() ? "" : "; ") + text_of(meeting_.address[next_], meeting_.port) + ": " +
            (error == 0 ? "somebody else" : error_text(error));
  socket_.close();
  ++next_;
}

bool Connecting::advance() {
  if (done_) return true;
  if (!socket_.is_open()) {
    // When all addresses have failed, they are tried again after a while.
    if (next_ == meeting_.addresses && now_ns() - since_ns_ < kAddressNs / 10) return false;
    try_next();
    if (!socket_.is_open()) return false;
  }
  if (now_ns() - since_ns_ > kAddressNs) {
    give_up(ETIMEDOUT);
    return false;
  }
  if (!connected_) {
    pollfd look{.fd = socket_.fd(), .events = POLLOUT, .revents = 0};
    if (poll(&look, 1, 0) == 0) return false;
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      give_up(error);
      return false;
    }
    Greeting greeting{.host_group = static_cast<std::uint32_t>(host_group_)};
    std::copy(kWord, std::end(kWord), greeting.word);
    std::ranges::copy(meeting_.secret, greeting.secret);
    if (::send(socket_.fd(), &greeting, sizeof greeting, MSG_NOSIGNAL) != sizeof greeting) {
      give_up(errno);
      return false;
    }
    connected_ = true;
  }
  const ssize_t got = ::recv(socket_.fd(), answer_ + greeted_, sizeof answer_ - greeted_, 0);
  if (got < 0 && would_block()) return false;
  if (got <= 0) {
    give_up(got == 0 ? 0 : errno);
    return false;
  }
  greeted_ += static_cast<std::size_t>(got);
  if (greeted_ < sizeof answer_) return false;
  if (std::memcmp(answer_, meeting_.answer, sizeof answer_) != 0) {
    give_up(0);
    return false;
  }
  prepare(socket_.fd());
  done_ = true;
  return true;
}

}  // namespace gradred
