package cni

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/retry"
)

// The runtime calls the plugin portmap after Hairpin's. Its rules are in nft tables of its own, and
// another program that flushes nft's ruleset removes them. The agent restores them with the same
// plugin, from the mappings that it has recorded on the pod's row.

const (
	// hostPortsDelay is the time from a change of portmap's rules to their check: the runtime calls
	// portmap some milliseconds after Hairpin's ADD, and some before its DEL.
	hostPortsDelay = time.Second
	// portmapTimeout limits one run of portmap.
	portmapTimeout = 5 * time.Second
)

// hostPorts returns the port mappings of an ADD; empty if there are none.
func (c *netConf) hostPorts() string {
	var list []json.RawMessage
	if json.Unmarshal(c.RuntimeConfig.PortMappings, &list) != nil || len(list) == 0 {
		return ""
	}
	var text bytes.Buffer
	if json.Compact(&text, c.RuntimeConfig.PortMappings) != nil || strings.ContainsRune(text.String(), ' ') {
		return "" // portmap rejects a protocol or an address with a space
	}
	return text.String()
}

// HostPorts returns the host ports of this node's pods. Those that portmap rejects are omitted.
func (s *Server) HostPorts() (list []cluster.HostPort) {
	for _, a := range s.alloc.attachments(s.ovs.View()) {
		var mappings []struct {
			HostPort uint16 `json:"hostPort"`
			Protocol string `json:"protocol"`
			HostIP   string `json:"hostIP"`
		}
		if a.hostPorts == "" || json.Unmarshal([]byte(a.hostPorts), &mappings) != nil {
			continue
		}
		for _, m := range mappings {
			protocol, err := cluster.ParseProtocol(corev1.Protocol(strings.ToUpper(m.Protocol)))
			if err != nil || m.Protocol == "" || m.HostPort == 0 {
				continue
			}
			var address netip.Addr
			if m.HostIP != "" {
				if address, err = netip.ParseAddr(m.HostIP); err != nil {
					continue
				}
			}
			list = append(list, cluster.HostPort{Pod: a.pod, Address: address,
				LoadBalancerPort: cluster.LoadBalancerPort{Protocol: protocol, Port: m.HostPort}})
		}
	}
	return list
}

// KeepHostPorts restores host ports of pods at once and whenever changed signals, until ctx ends.
func (s *Server) KeepHostPorts(ctx context.Context, changed <-chan struct{}) {
	if s.ovs.WaitSynced(ctx) != nil {
		return
	}
	for again := (retry.Backoff{Min: time.Second, Max: time.Minute}); ; {
		var wait <-chan time.Time
		if s.checkHostPorts(ctx) {
			again.Done()
		} else {
			again.Failed(time.Now())
			wait = time.After(again.Wait(time.Now()))
		}
		select {
		case <-ctx.Done():
			return
		case <-wait:
		case <-changed:
			retry.Sleep(ctx, hostPortsDelay)
		}
	}
}

// checkHostPorts restores lost host ports, and reports whether all are in place.
func (s *Server) checkHostPorts(ctx context.Context) bool {
	failed := map[string]error{}
	for _, a := range s.alloc.attachments(s.ovs.View()) {
		if a.hostPorts == "" || s.alloc.isReserved(a.Host) {
			continue
		}
		if err := s.restoreHostPorts(ctx, a.key()); err != nil {
			failed[a.Host] = err
		}
	}
	s.mu.Lock()
	same := maps.EqualFunc(s.health.lostHostPorts, failed, func(a, b error) bool { return a.Error() == b.Error() })
	s.health.lostHostPorts = failed
	s.mu.Unlock()
	if !same {
		s.changed.Notify()
	}
	return len(failed) == 0
}

func (s *Server) restoreHostPorts(ctx context.Context, key string) error {
	release, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	a, row := s.find(key)
	if row == nil || a.portmap(ctx, cmdCheck) == nil {
		return nil
	}
	// ADD alone would duplicate the remaining rules.
	if err := errors.Join(a.portmap(ctx, cmdDel), a.portmap(ctx, cmdAdd)); err != nil {
		return err
	}
	if !s.alloc.isAttached(s.ovs.View, a.Host) { // another sandbox of the pod replaced it meanwhile
		return a.portmap(ctx, cmdDel)
	}
	s.log.Warn("cni: restored host ports that another program removed", "pod", a.pod.String(), "ports", a.hostPorts)
	return nil
}

// unmapHostPorts removes the host ports of an attachment that is being removed. The runtime does
// this before DEL, but not before the ADD of another sandbox of the pod. Also, the agent may have
// restored them since. It returns only an exceeded time limit, after which the caller tries again:
// portmap may never accept a damaged record.
func (s *Server) unmapHostPorts(ctx context.Context, host string) error {
	row := interfaceNamed(s.ovs.View(), host)
	if row == nil {
		return nil
	}
	a := parseAttachment(row)
	if a.hostPorts == "" {
		return nil
	}
	err := a.portmap(ctx, cmdDel)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("remove host ports: %w", err)
	}
	if err != nil {
		s.log.Warn("cni: remove host ports", "pod", a.pod.String(), "error", err)
	}
	return nil
}

// portmapPath returns the path of the plugin portmap.
func portmapPath() (string, error) {
	if path, err := exec.LookPath(claims.PortmapPlugin); err == nil {
		return path, nil
	}
	paths := []string{claims.PortmapInImage, filepath.Join("/opt/cni/bin", claims.PortmapPlugin)}
	i := slices.IndexFunc(paths, func(p string) bool { _, err := os.Stat(p); return err == nil })
	if i < 0 {
		return "", fmt.Errorf("there is no %s in PATH, and neither %s nor %s", claims.PortmapPlugin, paths[0],
			paths[1])
	}
	return paths[i], nil
}

// portmap runs the plugin portmap for an attachment, as the runtime does after Hairpin's ADD.
func (a *attachment) portmap(ctx context.Context, command string) error {
	path, err := portmapPath()
	if err != nil {
		return err
	}
	result := a.result(a.container, &netlink.Device{})
	conf, err := json.Marshal(map[string]any{
		"cniVersion": result.CNIVersion, "name": a.network, "type": claims.PortmapPlugin,
		"backend":       claims.PortmapBackend,
		"runtimeConfig": map[string]any{"portMappings": json.RawMessage(a.hostPorts)}, "prevResult": result,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, portmapTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin = bytes.NewReader(conf)
	// portmap needs a CNI_NETNS, and does not open it. The agent may not see the namespace, so this
	// is the container ID.
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+a.container, "CNI_NETNS="+a.container,
		"CNI_NETNS_OVERRIDE=1",
		"CNI_IFNAME="+a.IfName, "CNI_PATH="+filepath.Dir(path))
	if out, err := cmd.Output(); err != nil {
		err = cmp.Or(ctx.Err(), err)
		return fmt.Errorf("%s %s: %w: %s", claims.PortmapPlugin, command, err, bytes.TrimSpace(out))
	}
	return nil
}
