// Package install installs the CNI plugin on a node, and removes Hairpin from it.
package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"hairpin/claims"
)

// Installation has the folders where a node's container runtime looks for network plugins.
type Installation struct {
	BinDir   string // plugins, such as /opt/cni/bin
	ConfDir  string // network configurations, such as /etc/cni/net.d
	ConfFile string // name of Hairpin's file in it; a runtime takes the first in alphabetical order
	RunDir   string // folder of the agent's socket, as a path on the host; empty = the default
	Portmap  string // the included plugin for host ports; empty = none
}

// pluginName is the name of Hairpin's plugin. Its copy of portmap is claims.PortmapPlugin, so that
// it does not replace one of the machine.
const pluginName = "hairpin"

// Install installs the CNI plugins and then the configuration that names them. It replaces each
// file atomically, also in case of a crash: pods may start while it runs.
func Install(to Installation, log *slog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	programs := map[string]string{pluginName: self}
	if to.Portmap != "" {
		programs[claims.PortmapPlugin] = to.Portmap
	}
	for name, from := range programs {
		if err := copyProgram(from, filepath.Join(to.BinDir, name)); err != nil {
			return fmt.Errorf("install plugin %s: %w", name, err)
		}
	}
	conf, err := to.configuration()
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	file := filepath.Join(to.ConfDir, to.ConfFile)
	if err := replaceFile(file, 0o644, func(f *os.File) error { _, err := f.Write(conf); return err }); err != nil {
		return fmt.Errorf("install network configuration: %w", err)
	}
	log.Info("installed", "plugins", to.BinDir, "configuration", file, "host ports", to.Portmap != "")
	if first := to.preferred(); first != "" {
		log.Warn("another network configuration sorts first: the runtime uses that one", "configuration",
			filepath.Join(to.ConfDir, first))
	}
	return nil
}

// Uninstall removes what Install installed. Missing files are no error.
func Uninstall(from Installation) error {
	var errs []error
	for _, file := range []string{filepath.Join(from.ConfDir, from.ConfFile), filepath.Join(from.BinDir, pluginName),
		filepath.Join(from.BinDir, claims.PortmapPlugin)} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("uninstall: %w", err))
		}
	}
	return errors.Join(errs...)
}

// configuration returns the network configuration list (CNI specification 1.1, section 1). Runtimes
// that support only version 1.0.0 do not read cniVersions.
func (i Installation) configuration() ([]byte, error) {
	type plugin struct {
		Type         string          `json:"type"`
		RunDir       string          `json:"runDir,omitempty"`
		Capabilities map[string]bool `json:"capabilities,omitempty"`
		Backend      string          `json:"backend,omitempty"`
	}
	list := struct {
		Version  string   `json:"cniVersion"`
		Versions []string `json:"cniVersions"`
		Name     string   `json:"name"`
		Plugins  []plugin `json:"plugins"`
	}{"1.0.0", []string{"1.0.0", "1.1.0"}, "hairpin", []plugin{{Type: pluginName, RunDir: i.RunDir}}}
	if i.Portmap != "" {
		ports := map[string]bool{"portMappings": true}
		list.Plugins[0].Capabilities = ports // the agent records them, and restores lost ones
		list.Plugins = append(list.Plugins,
			plugin{Type: claims.PortmapPlugin, Capabilities: ports, Backend: claims.PortmapBackend})
	}
	text, err := json.MarshalIndent(list, "", "  ")
	return append(text, '\n'), err
}

// preferred returns the configuration that a runtime takes in place of Hairpin's; empty if none.
func (i Installation) preferred() string {
	entries, err := os.ReadDir(i.ConfDir) // sorted
	if err != nil {
		return ""
	}
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".conf", ".conflist", ".json":
			if strings.Compare(e.Name(), i.ConfFile) < 0 {
				return e.Name()
			}
		}
	}
	return ""
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return replaceFile(to, 0o755, func(f *os.File) error { _, err := io.Copy(f, in); return err })
}

// replaceFile writes a temporary file in the same folder, and renames it. The temporary name begins
// with a dot, so that runtimes do not read it.
func replaceFile(name string, mode os.FileMode, write func(*os.File) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*.new")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // already renamed on success
	if err := errors.Join(write(f), f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
