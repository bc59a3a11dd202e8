#include "server/dispatch.h"

namespace reprise::server {

void DispatchFrame(Connection* connection, const wire::FrameHeader& header, ConstBytes body) {
  using wire::Opcode;
  switch (static_cast<Opcode>(header.opcode)) {
    case Opcode::kHello:
      return StartHello(connection, header, body);
    case Opcode::kOpenNamespace:
      return StartOpenNamespace(connection, header, body);
    case Opcode::kLookup:
      return StartLookup(connection, header, body);
    case Opcode::kAcquire:
      return StartAcquire(connection, header, body);
    case Opcode::kGet:
      return StartGet(connection, header, body);
    case Opcode::kRelease:
      return StartRelease(connection, header, body);
    case Opcode::kPut:
      return StartPut(connection, header, body);
    case Opcode::kWindowPut:
      return StartWindowPut(connection, header, body);
    case Opcode::kWindowAcquire:
    case Opcode::kWindowGet:
      return StartWindowRead(connection, header, body);
    case Opcode::kFetch:
      return StartFetch(connection, header, body);
    case Opcode::kWindowFetch:
      return StartWindowFetch(connection, header, body);
    case Opcode::kSlotAcquire:
      return StartSlotAcquire(connection, header, body);
    case Opcode::kControl:
      return StartControl(connection, header, body);
  }
}

}  // namespace reprise::server
