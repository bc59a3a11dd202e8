#include "tests/client/c_fake_server.h"

#include <memory>

#include "tests/client/fake_server.h"

namespace {

std::unique_ptr<reprise::test::FakeServer> server;

}  // namespace

extern "C" {

const char* c_fake_server_start(int tcp) {
  server = std::make_unique<reprise::test::FakeServer>(
      reprise::test::FakeServer::Options{.tcp = tcp != 0});
  return server->address().c_str();
}

void c_fake_server_stop(void) { server.reset(); }

}  // extern "C"
