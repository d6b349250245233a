package plan_test

import (
	"fmt"
	"os"
	"path"
	"strings"
	"testing"
)

// everyRow reads testdata/documents.txt: each section of each design document, its rules and
// remarks, and what Hairpin has instead. It returns a table for each document. A story, or a page
// of docs where no story can, must have the TEXT of what is the same or different:
//
//	# DOCUMENT
//	## SECTION
//	* rule or remark
//	= STORY | TEXT             the same: the story has TEXT
//	! STORY | TEXT | REASON    different: the story has TEXT
//	- REASON                   left out
func everyRow(t *testing.T) map[string]string {
	t.Helper()
	const name = "testdata/documents.txt"
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{}
	var document, section, row string
	told := true // the last rule or remark has a result
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		wrong := func(format string, args ...any) {
			t.Helper()
			t.Errorf("%s:%d: %s", name, i+1, fmt.Sprintf(format, args...))
		}
		kind, rest, _ := strings.Cut(line, " ")
		fields := strings.Split(rest, " | ")
		verdict, shown := "", ""
		switch kind {
		case "#", "##", "*":
			if !told {
				wrong("%q is compared with nothing", row)
			}
			told = kind != "*"
			switch kind {
			case "#":
				document = rest
				tables[document] = "\n| section | design | Hairpin | rule of Hairpin |\n|---|---|---|---|\n"
			case "##":
				section = rest
			default:
				row = rest
			}
			continue
		case "=":
			verdict = "the same"
		case "!":
			if len(fields) == 3 {
				verdict = "different: " + fields[2]
			}
		case "-":
			verdict, fields = "left out: "+rest, nil
		case "":
			continue
		}
		if verdict == "" || kind == "=" && len(fields) != 2 {
			wrong("not understood: %s", line)
			continue
		}
		if fields != nil {
			source, link := "testdata/"+fields[0]+".txtar", "../../../plan/testdata/"+fields[0]+".txtar"
			if strings.HasSuffix(fields[0], ".md") {
				source, link = "../docs/"+fields[0], "../../"+fields[0]
			}
			story, err := os.ReadFile(source)
			if err != nil || !strings.Contains(string(story), fields[1]) {
				wrong("%s does not have %q (%v)", source, fields[1], err)
			}
			shown = fmt.Sprintf("[%s](%s): `%s`", strings.ReplaceAll(path.Base(fields[0]), "-", " "), link,
				strings.ReplaceAll(strings.ReplaceAll(fields[1], "|", `\|`), "`", ""))
		}
		tables[document] += fmt.Sprintf("| %s | %s | %s | %s |\n", section, strings.ReplaceAll(row, "|", `\|`), verdict,
			shown)
		section, told = "", true
		row = ""
	}
	if !told {
		t.Errorf("%s: the last row is compared with nothing", name)
	}
	for _, d := range documents {
		if tables[d.name] == "" {
			t.Errorf("%s has nothing of %s", name, d.name)
		}
	}
	return tables
}
