// How ranks write data that their peers read: with ordinary stores, or past the caches.
//
// Lines that a peer has read are in its cache, and ordinary stores must first fetch them back one
// by one. Between distant cores this takes much longer than writing past the caches. Peers then
// read from memory, which fetches many lines at once. Between near cores, short data arrive sooner
// with ordinary stores. So rank 0 measures both for each power of two. It measures how long it
// takes to write its own data and to read its peers', without the wait in between. Each of its
// announcements of an allreduce through slots says what all ranks do from the next one on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradred {

class FasterStores {
 public:
  // Bytes. For shorter data, writing past the caches is never faster.
  static constexpr std::size_t kLeast = 2048;

  // Whether to write this number of bytes past the caches.
  bool past(std::size_t bytes) const {
    return bytes >= kLeast && (past_ >> index_of(bytes) & 1) != 0;
  }
  // For sizes from kLeast on, on the rank that decides. measures() returns whether the current
  // operation is to be timed with took(). decide() decides for the next operation: it returns the
  // bits that all ranks pass to follow() once they have seen the announcement.
  bool measures(std::size_t bytes) const { return times_[index_of(bytes)].measures; }
  std::uint8_t decide(std::size_t bytes);
  void took(std::size_t bytes, std::uint64_t ns);
  void follow(std::uint8_t past) { past_ = past; }

 private:
  static constexpr unsigned kBetween = 128;
  struct Times {
    std::array<double, 2> ns{};  // per byte, with ordinary stores and past the caches; 0: unknown
    unsigned operations = 0;
    unsigned trial = 1;           // the operation with which the next trial begins
    unsigned between = kBetween;  // operations between trials
    bool tries_past = true;       // the trial tests stores past the caches
    bool measures = false;

    void end_trial();
  };
  static constexpr unsigned kTrial = 8;
  static constexpr std::size_t kPowers = 8;  // the last one stands for all larger sizes
  static std::size_t index_of(std::size_t bytes);

  // A bit for each power of two. A size that was never tried takes the bit of the next smaller one.
  std::uint8_t past_ = 0;
  std::array<Times, kPowers> times_{};
};

// Writes what peers read, in the manner chosen for the current operation.
class PeerStores {
 public:
  FasterStores& faster() { return faster_; }
  void begin(bool past) { past_ = past; }  // `past`: past the caches
  // Chooses as measured for so many bytes.
  void begin_on(std::size_t bytes) { past_ = faster_.past(bytes); }
  bool past() const { return past_; }
  void give(std::byte* target, const std::byte* source, std::size_t bytes);
  std::uint64_t written_past() const { return written_past_; }  // number of such writes

 private:
  FasterStores faster_;
  bool past_ = false;
  std::uint64_t written_past_ = 0;
};

}  // namespace gradred
