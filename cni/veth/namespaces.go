package veth

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// NamespacesDir is the folder in which container runtimes keep the network namespaces of pods.
const NamespacesDir = "/run/netns"

// Namespaces returns the paths of the network namespaces in NamespacesDir, by their id in this one.
func Namespaces() (map[int]string, error) {
	entries, err := os.ReadDir(NamespacesDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	found := map[int]string{}
	for _, e := range entries {
		path := filepath.Join(NamespacesDir, e.Name())
		sandbox, err := ns.GetNS(path)
		if err != nil {
			continue // it is gone, or something else
		}
		if id, err := netlink.GetNetNsIdByFd(int(sandbox.Fd())); err == nil && id >= 0 {
			found[id] = path
		}
		_ = sandbox.Close()
	}
	return found, nil
}
