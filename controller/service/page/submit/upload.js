// Sending a file, telling how far it is: which fetch cannot do.

import { Problem, refusal } from "../api.js";
import { key } from "../session.js";

/** The uploaded file's document. `progress` is told shares from 0 to 1. Raises `Problem`. */
export function upload(content, filename, purpose, progress, signal) {
  const form = new FormData();
  form.append("purpose", purpose);
  form.append("file", content, filename);
  const request = new XMLHttpRequest();
  const answer = new Promise((resolve, reject) => {
    request.upload.addEventListener("progress", ({ loaded, total }) => progress(loaded / total));
    request.addEventListener("load", async () => {
      const response = new Response(request.responseText, {
        status: request.status,
        statusText: request.statusText,
      });
      if (response.ok) resolve(await response.json());
      else reject(await refusal(response));
    });
    request.addEventListener("error", () =>
      reject(
        new Problem({ title: "The file could not be sent", hint: "Choose it again to try again." }),
      ),
    );
    request.addEventListener("abort", () => reject(new DOMException("left", "AbortError")));
  });
  request.open("POST", "v1/files");
  request.setRequestHeader("Authorization", `Bearer ${key()}`);
  signal.addEventListener("abort", () => request.abort());
  request.send(form);
  return answer;
}
