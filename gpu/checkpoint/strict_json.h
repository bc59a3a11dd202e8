#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "protocol/base/status.h"

namespace reprise::engine {

// A JSON text read piece by piece, without a tree in memory, by a reader that knows what may come
// next: it overrides what it understands and everything else ends the reading with an error. So
// depth, kinds and amounts are the reader's, never the text's. Throws nothing.
class StrictJson : public nlohmann::json_sax<nlohmann::json> {
 public:
  absl::Status Read(std::string_view text);

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a truth value"); }
  bool number_integer(int64_t) override { return Unexpected("a negative number"); }
  bool number_unsigned(uint64_t) override { return Unexpected("a number"); }
  bool number_float(double, const std::string&) override { return Unexpected("a fraction"); }
  bool string(std::string&) override { return Unexpected("a string"); }
  bool binary(nlohmann::json::binary_t&) override { return Unexpected("binary data"); }
  bool start_object(size_t) override { return Unexpected("an object"); }
  bool key(std::string&) override { return Unexpected("a key"); }
  bool end_object() override { return Unexpected("the end of an object"); }
  bool start_array(size_t) override { return Unexpected("a list"); }
  bool end_array() override { return Unexpected("the end of a list"); }
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::detail::exception& error) final;

 protected:
  // Keeps the first error; false, to be returned to the parser.
  bool Refuse(std::string what);
  bool Unexpected(const char* kind) { return Refuse(Where() + ": " + kind + " has no place here"); }
  // What is being read, for errors: "tensor \"embed.weight\": shape".
  virtual std::string Where() const = 0;

 private:
  absl::Status status_;
};

// A name from a file, for errors: quoted, without control characters, cut where it is long.
std::string Quoted(std::string_view name);

}  // namespace reprise::engine
