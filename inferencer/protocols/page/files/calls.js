// How the server is asked: with the token of this tab, if it has one.

const KEY = "paramsync-token";
export const token = () => sessionStorage.getItem(KEY);
export const keep = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));
const headers = () => (token() ? { Authorization: `Bearer ${token()}` } : {});

// NaN and infinity, which JSON does not have, become texts; texts stay as they are
const parsed = (text) => JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|-?(?:NaN|Infinity)/g, (part) => (part.startsWith('"') ? part : `"${part}"`)));

async function answered(path, options) { // what an answer says, or an error with its words and status
  const answer = await fetch(path, options);
  const found = await answer.text().then(parsed).catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(found.error ?? `HTTP status ${answer.status}`), { status: answer.status });
  return found;
}
export const get = (path, signal) => answered(path, { headers: headers(), cache: "no-store", signal });
export const post = (path, body) => answered(path, { method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(body) });
