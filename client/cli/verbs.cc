#include "client/cli/commands.h"

namespace reprise::cli {

void AddVerbs(CLI::App* app, Globals* globals) {
  AddStatus(app, globals);
  AddExplain(app, globals);
  AddBlocks(app, globals);
  AddAdmin(app, globals);
  AddDoctor(app, globals);
  AddDrive(app, globals);
  AddTrace(app, globals);
  AddSimulate(app, globals);
  AddCalibrate(app, globals);
  AddRecord(app, globals);
  AddBench(app, globals);
  AddBenchEngine(app->get_subcommand("bench"), globals);
  AddModel(app, globals);
  AddGenerate(app, globals);
  AddSession(app, globals);
  AddChat(app, globals);
  AddCompletion(app);
}

}  // namespace reprise::cli
