package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// WriteProgram writes a container image of one static program to a file, an archive as WriteOCI writes. The program is
// /bin/NAME in it, NAME being that of the file; args are what a container runs.
func WriteProgram(out, name, program string, args ...string) error {
	if err := writeProgram(out, name, program, args); err != nil {
		return fmt.Errorf("write container image %s: %w", out, err)
	}
	return nil
}

func writeProgram(out, name, program string, args []string) error {
	work, err := os.MkdirTemp(filepath.Dir(out), ".oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	only, err := writeLayer(filepath.Join(work, "program"), func(l *layer) error {
		return errors.Join(l.folder("bin"), l.folder("etc"), l.folder("tmp"), l.program("bin/"+filepath.Base(program), program))
	})
	if err != nil {
		return err
	}
	tmp := filepath.Join(work, "image.tar")
	if _, err := writeLayout(tmp, packed{name, v1.ImageConfig{Entrypoint: args}, []blob{only}}); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}
