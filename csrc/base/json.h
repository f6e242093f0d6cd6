// Builds JSON text from values.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace gradred {

class Json {
 public:
  Json() : text_("null") {}
  Json(std::string_view value);  // NOLINT: implicit, so that values convert in arguments
  Json(const std::string& value) : Json(std::string_view(value)) {}
  Json(const char* value) : Json(std::string_view(value)) {}
  Json(double value);
  template <std::integral Number>
  Json(Number value) : text_(std::to_string(value)) {}

  static Json object() { return Json('{', '}'); }
  static Json list() { return Json('[', ']'); }

  Json& put(std::string_view name, const Json& value);  // for an object
  Json& add(const Json& value);                         // for a list
  std::string text() const;

 private:
  Json(char open, char close) : text_(1, open), close_(close) {}
  void append(const std::string& entry);

  std::string text_;
  char close_ = 0;  // the closing bracket; 0: no object or list
};

}  // namespace gradred
