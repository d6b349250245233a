package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gopkg.in/ini.v1"

	"hairpin/cluster"
	"hairpin/hostnet/uplink"
)

// networkManager is the object of findings about NetworkManager's profiles.
const networkManager = "NetworkManager"

// profileDirs are the folders of NetworkManager's profiles.
var profileDirs = [...]string{"/etc/NetworkManager/system-connections", "/run/NetworkManager/system-connections"}

// formerDir is the folder beside them to which --fix moves profiles.
const formerDir = "hairpin-former"

// profile is a file with a NetworkManager connection.
type profile struct {
	path, name string
	text       *ini.File // nil if it is not a valid INI file
	ofBridge   bool      // configure-ovs.sh made it for the gateway bridge, or is likely to have
}

// ofSomeBridge reports whether configure-ovs.sh made a profile, for the gateway bridge or another.
func (p *profile) ofSomeBridge() bool {
	return p.ofBridge || strings.HasPrefix(p.name, "ovs-if-") || strings.HasPrefix(p.name, "ovs-port-")
}

type profileList []profile

// findProfiles reads all profiles. names are those that configure-ovs.sh uses.
func (m *machine) findProfiles(bridge string) (list profileList, err error) {
	names := []string{bridge, "ovs-if-" + bridge, "ovs-port-" + bridge, "ovs-if-phys0", "ovs-port-phys0"}
	for _, dir := range profileDirs {
		files, err := m.list(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, f := range files {
			if f.IsDir() || strings.HasPrefix(f.Name(), ".") {
				continue
			}
			p := profile{path: filepath.Join(dir, f.Name()), name: strings.TrimSuffix(f.Name(), ".nmconnection")}
			p.ofBridge = slices.Contains(names, p.name) || strings.HasSuffix(p.name, "-slave-ovs-clone")
			if text, err := m.read(p.path); err == nil {
				p.text, _ = ini.LoadSources(ini.LoadOptions{IgnoreInlineComment: true, KeyValueDelimiters: "="}, text)
			}
			list = append(list, p)
		}
	}
	return list, nil
}

func (p *profile) get(section, key string) string {
	if p.text == nil {
		return ""
	}
	return p.text.Section(section).Key(key).String()
}

// refusal returns why the profiles of a bridge must stay: NetworkManager would make the bridge
// again, or not give the device the same addresses at the next boot.
func (list profileList) refusal(bridge, device string) error {
	if pid := running(networkManager); pid != 0 {
		return fmt.Errorf("%s runs (pid %d) and would make the bridge again: first `systemctl stop NetworkManager`, "+
			"which leaves addresses as they are, and start it afterwards",
			networkManager, pid)
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		fixed := func(p profile) bool { return p.get(family, "method") == "manual" }
		i := slices.IndexFunc(list, func(p profile) bool {
			return p.ofBridge && p.name == "ovs-if-"+bridge && fixed(p)
		})
		if i >= 0 && !slices.ContainsFunc(list, func(p profile) bool {
			return !p.ofBridge && fixed(p) && p.get("connection", "interface-name") == device &&
				p.get("connection", "autoconnect") != "false"
		}) {
			return fmt.Errorf("no profile of %s has the %s addresses that %s has: after a boot they would be missing",
				device, family, list[i].path)
		}
	}
	return nil
}

// running returns the PID of a program in this network namespace, or 0.
func running(program string) (pid int) {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return 0
	}
	all, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is good
	for _, path := range all {
		if text, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(text)) != program {
			continue
		}
		dir := filepath.Dir(path)
		if there, err := os.Readlink(filepath.Join(dir, "ns/net")); err == nil && there == here {
			_, _ = fmt.Sscan(filepath.Base(dir), &pid)
		}
	}
	return pid
}

// profiles finds the NetworkManager connections that configure-ovs.sh of OVN-Kubernetes makes for
// the gateway bridge.
func profiles(ctx context.Context, m *machine) (list []Finding, err error) {
	bridge := m.Cluster.Gateway.Interface
	all, err := m.findProfiles(bridge)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.ofSomeBridge() {
			list = append(list, Finding{Severity: Warning, Object: p.path,
				Message: "of configure-ovs.sh: NetworkManager makes the bridge at every boot, with the device in it",
				Remedy: "nmcli connection delete " + p.name +
					", and let NetworkManager manage the device itself; docs/operations/migrate.md"})
		}
	}
	bridgeProfiles := slices.DeleteFunc(slices.Clone(all), func(p profile) bool { return !p.ofBridge })
	if len(bridgeProfiles) == 0 || cluster.ModeNamed(m.Cluster.Gateway.Mode).Uplink {
		return list, nil
	}
	f := Finding{Severity: Warning, Object: networkManager, Message: "has profiles that put the device into " + bridge +
		" again at the next boot", fixOrder: profileOrder}
	why := all.refusal(bridge, all.device())
	if err := withForeign(ctx, m, func(b *uplink.Foreign) error {
		why = cmp.Or(b.Refusal, why)
		return nil
	}); err != nil {
		return nil, err
	}
	if why != nil {
		f.Remedy = fmt.Sprintf("--fix does not remove them: %v", why)
		return append(list, f), nil
	}
	for _, p := range bridgeProfiles {
		f.Fix = append(f.Fix, "mv "+p.path+" "+p.formerPath())
	}
	f.fix = func(ctx context.Context) (did []string, err error) {
		// If the bridge stays in the database without its profiles, the device has no addresses
		// after the next boot.
		if err := withForeign(ctx, m, func(b *uplink.Foreign) error {
			return fmt.Errorf("%s is in bridge %s", b.Device, b.Bridge)
		}); err != nil {
			return nil, err
		}
		return bridgeProfiles.move()
	}
	return append(list, f), nil
}

// device returns the device that configure-ovs.sh has put into the bridge.
func (list profileList) device() string {
	i := slices.IndexFunc(list, func(p profile) bool { return p.ofBridge && p.name == "ovs-if-phys0" })
	if i < 0 {
		return ""
	}
	return list[i].get("connection", "interface-name")
}

func (p *profile) formerPath() string {
	return filepath.Join(filepath.Dir(filepath.Dir(p.path)), formerDir, filepath.Base(p.path))
}

// move moves all profiles to formerDir, which NetworkManager does not read, or none.
func (list profileList) move() (did []string, err error) {
	for i, p := range list {
		to := p.formerPath()
		if err = os.MkdirAll(filepath.Dir(to), 0o700); err == nil {
			err = os.Rename(p.path, to)
		}
		if err != nil {
			for _, q := range list[:i] {
				err = errors.Join(err, os.Rename(q.formerPath(), q.path))
			}
			return nil, fmt.Errorf("%w; the profiles are where they were", err)
		}
		did = append(did, "mv "+p.path+" "+to)
	}
	return did, nil
}
