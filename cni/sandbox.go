package cni

import (
	"errors"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// openSandbox opens the network namespace of a sandbox. It must not be the node's own.
func openSandbox(path string) (ns.NetNS, *types.Error) {
	own, err := ns.GetCurrentNS()
	if err != nil {
		return nil, errInternal("the node's network namespace", err)
	}
	defer own.Close()
	sandbox, err := ns.GetNS(path)
	if err != nil {
		return nil, errInvalidEnv("CNI_NETNS: %v", err)
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(int(own.Fd()), &a), unix.Fstat(int(sandbox.Fd()), &b)); err != nil {
		return nil, errInternal("CNI_NETNS "+path, errors.Join(err, sandbox.Close()))
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		_ = sandbox.Close()
		return nil, types.NewError(types.ErrInvalidNetNS, "CNI_NETNS "+path+" is the node's own network namespace", "")
	}
	return sandbox, nil
}
