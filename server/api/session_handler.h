#pragma once

#include "server/api/api_call.h"

namespace reprise::server {

// /v1/sessions and what is below it. `name` is of the path.
void HandleSessionCreate(ApiCall* call);
void HandleSessionList(ApiCall* call);
void HandleSessionGet(ApiCall* call, const std::string& name);
void HandleSessionRemove(ApiCall* call, const std::string& name);
void HandleSessionSend(ApiCall* call, const std::string& name);
void HandleSessionFork(ApiCall* call, const std::string& name);
void HandleSessionBlocks(ApiCall* call, const std::string& name);
void HandleSessionExport(ApiCall* call, const std::string& name);
void HandleSessionImport(ApiCall* call);

}  // namespace reprise::server
