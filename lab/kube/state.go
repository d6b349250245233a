package main

import (
	"crypto/rand"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// statePaths are the files under --dir.
type statePaths struct {
	etcd              string // etcd's data directory
	pki               string // directory of the next six
	caCert, caKey     string
	serverCert        string
	serverKey         string
	kubeletClientCert string // what the API server shows to kubelets; its key is serverKey
	serviceAccountKey string
	tokens            string // static tokens, as --token-auth-file wants them
	adminKubeconfig   string
}

// writeState makes what is missing under cfg.dir. The CA, the key that signs service accounts, and
// the tokens are made once; the serving certificate and the kubeconfigs follow the address and are
// made at each start.
func writeState(cfg config) (statePaths, error) {
	dir, err := filepath.Abs(cfg.dir)
	if err != nil {
		return statePaths{}, err
	}
	pki := filepath.Join(dir, "pki")
	p := statePaths{
		etcd:              filepath.Join(dir, "etcd"),
		pki:               pki,
		caCert:            filepath.Join(pki, "ca.crt"),
		caKey:             filepath.Join(pki, "ca.key"),
		serverCert:        filepath.Join(pki, "apiserver.crt"),
		serverKey:         filepath.Join(pki, "apiserver.key"),
		kubeletClientCert: filepath.Join(pki, "kubelet-client.crt"),
		serviceAccountKey: filepath.Join(pki, "sa.key"),
		tokens:            filepath.Join(dir, "tokens.csv"),
		adminKubeconfig:   filepath.Join(dir, "kubeconfig"),
	}
	for _, d := range []string{p.etcd, p.pki} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return statePaths{}, err
		}
	}
	if err := writeCertificates(cfg, p); err != nil {
		return statePaths{}, err
	}
	tokens, err := readTokens(p.tokens)
	if err != nil {
		return statePaths{}, err
	}
	for _, id := range identities(cfg.nodes) {
		tokens.add(id)
	}
	if err := tokens.write(p.tokens); err != nil {
		return statePaths{}, err
	}
	for _, id := range identities(cfg.nodes) {
		path := filepath.Join(dir, id.kubeconfig)
		if err := writeKubeconfig(path, p.caCert, netip.AddrPortFrom(cfg.address, cfg.port), id.user,
			tokens[id.user][0]); err != nil {
			return statePaths{}, err
		}
	}
	return p, nil
}

// identity is a user with a static token.
type identity struct {
	user, group string
	kubeconfig  string // file name in --dir
}

// identities are the administrator and one kubelet per node.
func identities(nodes []string) []identity {
	ids := []identity{{user: "admin", group: "system:masters", kubeconfig: "kubeconfig"}}
	for _, n := range nodes {
		ids = append(ids, identity{user: "system:node:" + n, group: "system:nodes", kubeconfig: "node-" + n +
			".kubeconfig"})
	}
	return ids
}

// tokenFile maps a user to its record: token, user, uid, groups.
type tokenFile map[string][]string

// readTokens reads the tokens of an earlier start; no file means none.
func readTokens(path string) (tokenFile, error) {
	tokens := tokenFile{}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return tokens, nil
	}
	if err != nil {
		return nil, err
	}
	r := csv.NewReader(strings.NewReader(string(data)))
	r.FieldsPerRecord = 4
	records, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading tokens of %s: %w", path, err)
	}
	for _, rec := range records {
		tokens[rec[1]] = rec
	}
	return tokens, nil
}

// add gives id a new random token unless it has one.
func (t tokenFile) add(id identity) {
	if _, ok := t[id.user]; ok {
		return
	}
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // documented never to fail
	t[id.user] = []string{hex.EncodeToString(secret), id.user, id.user, id.group}
}

func (t tokenFile) write(path string) error {
	var text strings.Builder
	w := csv.NewWriter(&text)
	for _, rec := range t {
		if err := w.Write(rec); err != nil {
			return fmt.Errorf("formatting tokens: %w", err)
		}
	}
	w.Flush()
	return os.WriteFile(path, []byte(text.String()), 0o600)
}

// writeKubeconfig writes a kubeconfig with everything inside, so that it can be copied elsewhere.
func writeKubeconfig(path, caCert string, server netip.AddrPort, user, token string) error {
	ca, err := os.ReadFile(caCert)
	if err != nil {
		return err
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["hairpin"] = &clientcmdapi.Cluster{Server: "https://" + server.String(), CertificateAuthorityData: ca}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	c.Contexts["hairpin"] = &clientcmdapi.Context{Cluster: "hairpin", AuthInfo: user}
	c.CurrentContext = "hairpin"
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}
