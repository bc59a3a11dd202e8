#include "client/cli/completion.h"

#include <cstdio>

#include "client/cli/commands.h"

namespace reprise::cli {
namespace {

std::vector<const CLI::App*> VerbsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* verb) { return !verb->get_name().empty(); });
}

std::vector<const CLI::Option*> OptionsOf(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_lnames().empty(); });
}

// "--model --tokens": every long name of the options, the verbs first.
std::string Words(const CLI::App& app) {
  std::string words;
  const auto add = [&words](const std::string& word) {
    if (!words.empty()) words += ' ';
    words += word;
  };
  for (const CLI::App* verb : VerbsOf(app)) add(verb->get_name());
  for (const CLI::Option* option : OptionsOf(app)) {
    for (const std::string& name : option->get_lnames()) add("--" + name);
  }
  return words;
}

std::string VerbNames(const CLI::App& root, const char* between) {
  std::string names;
  for (const CLI::App* verb : VerbsOf(root))
    names += (names.empty() ? "" : between) + verb->get_name();
  return names;
}

// The text inside single quotes of a shell.
std::string Quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

// A colon separates word and description in zsh.
std::string ZshItem(const std::string& word, const std::string& description) {
  std::string escaped;
  for (const char c : description) {
    if (c == ':') escaped += '\\';
    escaped += c;
  }
  return Quoted(word + ":" + escaped);
}

std::string ZshItems(const CLI::App& app) {
  std::string items;
  for (const CLI::App* verb : VerbsOf(app)) {
    items += "\n      " + ZshItem(verb->get_name(), verb->get_description());
  }
  for (const CLI::Option* option : OptionsOf(app)) {
    for (const std::string& name : option->get_lnames()) {
      items += "\n      " + ZshItem("--" + name, option->get_description());
    }
  }
  return items;
}

}  // namespace

std::string BashCompletion(const CLI::App& root) {
  std::string script =
      "# bash completion for reprise; to use it now: source <(reprise completion bash)\n"
      "_reprise() {\n"
      "  local verb= words= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case ${COMP_WORDS[i]} in\n"
      "      " +
      VerbNames(root, "|") +
      ") verb=${COMP_WORDS[i]}; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $verb in\n"
      "    '') words='" +
      Words(root) + "' ;;\n";
  for (const CLI::App* verb : VerbsOf(root)) {
    script += "    " + verb->get_name() + ") words='" + Words(*verb) + "' ;;\n";
  }
  return script +
         "  esac\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
         "}\n"
         "complete -o default -F _reprise reprise\n";
}

std::string ZshCompletion(const CLI::App& root) {
  std::string script =
      "#compdef reprise\n"
      "# zsh completion for reprise; save as _reprise in a directory of $fpath\n"
      "_reprise() {\n"
      "  local verb word\n"
      "  local -a items\n"
      "  for word in ${words[2,$((CURRENT - 1))]}; do\n"
      "    case $word in\n"
      "      " +
      VerbNames(root, "|") +
      ") verb=$word; break ;;\n"
      "    esac\n"
      "  done\n"
      "  case $verb in\n"
      "    '') items=(" +
      ZshItems(root) + ") ;;\n";
  for (const CLI::App* verb : VerbsOf(root)) {
    script += "    " + verb->get_name() + ") items=(" + ZshItems(*verb) + ") ;;\n";
  }
  return script +
         "  esac\n"
         "  _describe 'reprise' items || _files\n"
         "}\n"
         "compdef _reprise reprise\n";
}

std::string FishCompletion(const CLI::App& root) {
  std::string script =
      "# fish completion for reprise; save as ~/.config/fish/completions/reprise.fish\n";
  const auto add_options = [&script](const CLI::App& app, const std::string& condition) {
    for (const CLI::Option* option : OptionsOf(app)) {
      for (const std::string& name : option->get_lnames()) {
        script += "complete -c reprise" + condition + " -l " + name +
                  (option->get_items_expected_max() > 0 ? " -r" : "") + " -d " +
                  Quoted(option->get_description()) + "\n";
      }
    }
  };
  add_options(root, "");
  for (const CLI::App* verb : VerbsOf(root)) {
    script += "complete -c reprise -f -n __fish_use_subcommand -a " + verb->get_name() + " -d " +
              Quoted(verb->get_description()) + "\n";
    const std::string seen = " -n '__fish_seen_subcommand_from " + verb->get_name() + "'";
    for (const CLI::App* nested : VerbsOf(*verb)) {
      script += "complete -c reprise -f" + seen + " -a " + nested->get_name() + " -d " +
                Quoted(nested->get_description()) + "\n";
    }
    add_options(*verb, seen);
  }
  return script;
}

void AddCompletion(CLI::App* app) {
  CLI::App* verb = app->add_subcommand("completion", "Print a shell's completion script");
  const auto shell = std::make_shared<std::string>();
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  verb->callback([app, shell] {
    const std::string script = *shell == "bash"  ? BashCompletion(*app)
                               : *shell == "zsh" ? ZshCompletion(*app)
                                                 : FishCompletion(*app);
    std::fwrite(script.data(), 1, script.size(), stdout);
  });
}

}  // namespace reprise::cli
