// The part of XLA's C interface for foreign functions that gradred uses. It is declared here so
// that the extension builds without jaxlib, and calls whichever jaxlib the program has.
// https://github.com/openxla/xla/blob/main/xla/ffi/api/c_api.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gradred::xla {

struct Error;   // XLA's
struct Future;  // XLA's

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int kMetadataExtension = 1;

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major, minor;
};

// Newer versions of XLA have more members at the end, which the handler leaves as they are.
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Text {
  const char* data;
  std::size_t length;

  std::string_view view() const { return {data, length}; }
};

struct Buffer {
  std::size_t struct_size;
  Extension* extensions;
  int dtype;  // a number of xla_data.proto
  void* data;
  std::int64_t axes;
  std::int64_t* shape;
};

// The arguments of a call, or its results.
struct Buffers {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* types;
  void** values;

  const Buffer& operator[](std::int64_t index) const {
    return *static_cast<const Buffer*>(values[index]);
  }
};

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* types;
  Text** names;
  void** values;
};
inline constexpr int kTextAttribute = 4;

// XLA's functions. Later versions append functions, except that one was inserted at number 12 in
// jaxlib 0.4.38. So the functions of futures have moved (_futures_at in src/gradred/jax/ranks.py).
struct Api {
  using Function = Error* (*)(void* arguments);
  static constexpr std::size_t kCreateError = 0;

  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* internal;
  Function functions[16];
};

inline constexpr int kExecuteStage = 3;
struct CallFrame {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments, results;
  Attributes attributes;
  // Set by a handler whose work goes on after it has returned. XLA keeps arguments, results and
  // attributes alive until the future is completed.
  Future* future;
};

// https://abseil.io/docs/cpp/guides/status-codes
enum class Status : int {
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

struct CreateError {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;  // is copied
  Status status;
};

struct CreateFuture {
  std::size_t struct_size;
  Extension* extensions;
  Future* future;  // set by XLA
};

struct CompleteFuture {
  std::size_t struct_size;
  Extension* extensions;
  Future* future;
};

struct FailFuture {
  std::size_t struct_size;
  Extension* extensions;
  Future* future;
  Error* error;  // becomes XLA's
};

}  // namespace gradred::xla
