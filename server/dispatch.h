#pragma once

#include "protocol/wire/frame.h"
#include "server/connection.h"

namespace reprise::server {

// The table of opcodes: starts the operation that a frame asks for. `body` is valid during the call
// only. An operation that wants the frame's data part calls connection->ReceiveData before it
// returns; else the data part is discarded.
void DispatchFrame(Connection* connection, const wire::FrameHeader& header, ConstBytes body);

// One per opcode, each in its own op_*.cc.
void StartHello(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartOpenNamespace(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartLookup(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartAcquire(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartGet(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartFetch(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartRelease(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartPut(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartWindowPut(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartWindowRead(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartWindowFetch(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartSlotAcquire(Connection* connection, const wire::FrameHeader& header, ConstBytes body);
void StartControl(Connection* connection, const wire::FrameHeader& header, ConstBytes body);

// A control message with a file of its own.
void StartSlotPool(Connection* connection, const wire::FrameHeader& header);

}  // namespace reprise::server
