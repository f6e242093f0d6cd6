// Values as JSON, written and never read.
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace gradred {

class Json {
 public:
  Json() : text_("null") {}
  Json(std::string_view value);  // NOLINT: values become JSON where they are put
  Json(const std::string& value) : Json(std::string_view(value)) {}
  Json(const char* value) : Json(std::string_view(value)) {}
  Json(double value);
  template <std::integral Number>
  Json(Number value) : text_(std::to_string(value)) {}

  static Json object() { return Json('{', '}'); }
  static Json list() { return Json('[', ']'); }

  Json& put(std::string_view name, const Json& value);  // of an object
  Json& add(const Json& value);                         // of a list
  std::string text() const;

 private:
  Json(char open, char close) : text_(1, open), close_(close) {}
  void append(const std::string& entry);

  std::string text_;
  char close_ = 0;  // of what is open
};

}  // namespace gradred
